# Everything a contributor types. `make` alone lists the targets.

.DEFAULT_GOAL := help
.PHONY: help page run build test t quick setup-tests capacity crash-matrix lint fmt simulation fuzz bench bench-context bench-decode bench-tools bench-wires pictures settings openapi deny

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 14

# The development profile: it builds in half the time of a release build.
run: page ## Build for development and serve; ARGS="--listen 127.0.0.1:9000" passes flags
	cargo run --locked -- serve $(ARGS)

build: page ## Build for production: target/release/capstan
	cargo build --locked --release

page: ## Build the chat page, which the program embeds; needs Node 20.19, and is left out without it
	scripts/build-page.sh

test: ## Check formatting and lints, then run every test on SQLite and Postgres; sets up what it needs
	scripts/test.sh

t: ## Run the tests of one area: AREA=provider, or another folder of src or tests/it; NAME=part of their names
	scripts/test-area.sh $(AREA) $(NAME)

quick: ## Run the tests that need no database server, network, browser or other program
	cargo nextest run --locked --workspace --profile quick

setup-tests: ## Install what the tests talk to: MCP servers, model servers, a browser, podman
	scripts/setup-tests.sh

capacity: ## Measure what this machine bears: crowds, stalled readers, clients that come back, tool calls; for half an hour
	scripts/capacity.sh

crash-matrix: ## Die, stop, panic and lose the database at every point, on both stores; SEEDS=20 KILLS=1000, for hours
	scripts/crash-matrix.sh

lint: ## Check formatting, lints, and the licences and advisories of dependencies if cargo-deny is installed
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	@if command -v cargo-deny >/dev/null; then cargo deny --locked check; else echo 'cargo-deny is not installed: `make deny` installs it'; fi

fmt: ## Format the code
	cargo fmt --all

simulation: ## Play 10,000 seeds of the simulation, or SEEDS=n from FROM=n on; SEED=n plays that one, aloud
	$(if $(SEED),CAPSTAN_SIM_SEED=$(SEED),CAPSTAN_SIM_SEEDS=$(or $(SEEDS),10000) CAPSTAN_SIM_FROM=$(or $(FROM),0)) \
	  cargo nextest run --locked -p capstan-it --test simulation --no-capture every_seed_holds

bench: ## Measure against the floors and print the tables of docs/benchmarks/README.md
	scripts/bench.sh

fuzz: ## Run every fuzzer of fuzz/ for TIME=60 seconds each, or TARGET=name; wants cargo-fuzz
	TIME=$(or $(TIME),60) TARGET=$(TARGET) scripts/fuzz.sh

bench-decode: ## Measure decoding against parsing alone, and count allocations per token
	cargo bench --locked -p capstan-fuzz --bench decode

bench-context: ## Measure what building a request costs, for conversations of 10 to 2,000 messages
	cargo bench --locked -p capstan-fuzz --bench context

bench-tools: ## Measure what a tool call costs beside what its tool takes, on both stores, in a release build
	CAPSTAN_TOOL_ROUNDS=$(ROUNDS) scripts/capacity.sh overhead

bench-wires: ## Measure what the streams of other protocols cost beside the native stream, in a release build
	CAPSTAN_WIRE_ROUNDS=$(or $(ROUNDS),9) scripts/capacity.sh wire_costs

pictures: ## Take the pictures of the documents from the running program
	scripts/pictures.sh

settings: ## Write docs/reference/settings.md from the code
	cargo run --locked -- settings > docs/reference/settings.md

openapi: ## Write the documents of openapi/ from the code
	cargo run --locked -- openapi > openapi/capstan.json
	cargo run --locked -- openapi --protocols > openapi/protocols.json

deny: ## Install cargo-deny and run it
	cargo install --locked cargo-deny
	cargo deny --locked check
