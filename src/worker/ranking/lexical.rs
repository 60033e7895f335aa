//! Lexical ranking of tools: BM25 over names, descriptions and the names of parameters.

use std::collections::HashSet;
use std::sync::Arc;

use bm25::{Embedder, EmbedderBuilder, Embedding, Scorer, TokenEmbedder, TokenEmbedding, Tokenizer};
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use sha2::{Digest as _, Sha256};

use crate::domain::tool::ToolDefinition;
use crate::support::search_words::{distinct, search_terms};

/// The maximum number of tools in all cached indexes, which use some tens of megabytes.
const CACHED_TOOLS: u64 = 20_000;

/// The maximum number of terms of a query. More terms rarely improve the ranking.
const MAX_TERMS: usize = 256;

type SetHash = [u8; 32];

/// The cache of indexes, by set of tools.
pub(super) struct Lexical(Cache<SetHash, Arc<Index>>);

impl Default for Lexical {
    fn default() -> Self {
        let size = |_: &SetHash, index: &Arc<Index>| u32::try_from(index.names.len()).unwrap_or(u32::MAX);
        Self(Cache::builder().max_capacity(CACHED_TOOLS).weigher(size).eviction_policy(EvictionPolicy::lru()).build())
    }
}

impl Lexical {
    /// Returns the names of the tools, the best match first; equal matches are sorted by name.
    pub(super) fn order(&self, query: &str, tools: &[Arc<ToolDefinition>]) -> Vec<String> {
        self.index(tools).order(query)
    }

    fn index(&self, tools: &[Arc<ToolDefinition>]) -> Arc<Index> {
        let key = hash(tools);
        self.0.get(&key).unwrap_or_else(|| {
            let index = Arc::new(Index::new(tools));
            self.0.insert(key, Arc::clone(&index));
            self.0.run_pending_tasks();
            index
        })
    }
}

fn hash(tools: &[Arc<ToolDefinition>]) -> SetHash {
    let mut hash = Sha256::new();
    for tool in tools {
        for part in [&tool.name, &tool.definition_hash, &tool.description] {
            hash.update(part.len().to_le_bytes());
            hash.update(part);
        }
    }
    hash.finalize().into()
}

struct Terms;

impl Tokenizer for Terms {
    fn tokenize(&self, text: &str) -> Vec<String> {
        search_terms(text)
    }
}

struct Index {
    names: Vec<String>,
    known: HashSet<u32>,
    scorer: Scorer<usize>,
}

impl Index {
    fn new(tools: &[Arc<ToolDefinition>]) -> Self {
        let texts: Vec<String> = tools.iter().map(|tool| text(tool)).collect();
        let corpus: Vec<&str> = texts.iter().map(String::as_str).collect();
        let embedder: Embedder<u32, Terms> = EmbedderBuilder::with_tokenizer_and_fit_to_corpus(Terms, &corpus).build();
        let mut scorer = Scorer::new();
        let mut known = HashSet::new();
        for (at, text) in texts.iter().enumerate() {
            let embedding = embedder.embed(text);
            known.extend(embedding.indices().copied());
            scorer.upsert(&at, embedding);
        }
        Self { names: tools.iter().map(|tool| tool.name.clone()).collect(), known, scorer }
    }

    fn order(&self, query: &str) -> Vec<String> {
        let mut seen = HashSet::new();
        let terms = distinct(search_terms(query)).into_iter().map(|term| u32::embed(&term));
        let terms = terms.filter(|term| self.known.contains(term) && seen.insert(*term)).take(MAX_TERMS);
        let query_terms = Embedding(terms.map(|index| TokenEmbedding { index, value: 1.0 }).collect());
        let mut scores = vec![0.0_f32; self.names.len()];
        for found in self.scorer.matches(&query_terms) {
            if let Some(score) = scores.get_mut(found.id) {
                *score = found.score;
            }
        }
        by_score(scores.into_iter().zip(&self.names))
    }
}

/// Returns names by score, the highest first; equal scores are sorted by name.
pub(super) fn by_score<'n>(scored: impl Iterator<Item = (f32, &'n String)>) -> Vec<String> {
    let mut scored: Vec<(f32, &String)> = scored.collect();
    scored.sort_by(|one, other| other.0.total_cmp(&one.0).then_with(|| one.1.cmp(other.1)));
    scored.into_iter().map(|(_, name)| name.clone()).collect()
}

/// Returns the indexed text of a tool. The tool's name, which contains the server's name, counts twice.
fn text(tool: &ToolDefinition) -> String {
    let parameters = tool.parameters.get("properties").and_then(|properties| properties.as_object());
    let mut text = format!("{0} {0} {1}", tool.name, tool.description);
    for name in parameters.into_iter().flat_map(|properties| properties.keys()) {
        text.push(' ');
        text.push_str(name);
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::domain::tool::ReplayClass;

    pub(in super::super) fn tool(name: &str, description: &str) -> Arc<ToolDefinition> {
        let parameters = json!({"type": "object", "properties": {"recipient": {"type": "string"}}});
        Arc::new(ToolDefinition {
            server: name.split_once("__").map(|(server, _)| server.to_owned()),
            ..ToolDefinition::new(name, description, parameters, ReplayClass::Unsafe)
        })
    }

    fn tools() -> Vec<Arc<ToolDefinition>> {
        vec![
            tool("disk__trash_file", "Moves a file to the trash"),
            tool("mail__send_message", "Sends an e-mail"),
            tool("sky__forecast", "Weather of the next days"),
            tool("ablage__datei_löschen", "Löscht eine Datei für immer"),
            tool("wenjian__shanchu", "删除文件"),
            tool("tenki__yohou", "天気予報を調べる"),
        ]
    }

    #[rstest]
    #[case("please send an email to Ann", "mail__send_message")]
    #[case("put these files into the trash", "disk__trash_file")]
    #[case("what will the WEATHER be?", "sky__forecast")]
    #[case("Lösche die Dateien", "ablage__datei_löschen")]
    #[case("请删除这个文件", "wenjian__shanchu")]
    #[case("明日の天気は?", "tenki__yohou")]
    fn the_fittest_comes_first_in_any_language(#[case] query: &str, #[case] best: &str) {
        assert_eq!(Lexical::default().order(query, &tools())[0], best);
    }

    #[test]
    fn equal_scores_are_sorted_by_name() {
        let mut expected: Vec<String> = tools().iter().map(|tool| tool.name.clone()).collect();
        expected.sort();
        assert_eq!(Lexical::default().order("", &tools()), expected);
        assert_eq!(Lexical::default().order("xyzzy \u{1F600}", &tools()), expected);
    }

    #[test]
    fn a_set_is_indexed_once_and_few_are_remembered() {
        let lexical = Lexical::default();
        let set = tools();
        let first = lexical.index(&set);
        assert!(Arc::ptr_eq(&first, &lexical.index(&set)));
        let mut changed = tools();
        Arc::make_mut(&mut changed[0]).description.push('!');
        assert!(!Arc::ptr_eq(&first, &lexical.index(&changed)));
        let many: Vec<_> = (0..CACHED_TOOLS - 3).map(|n| tool(&format!("t{n}"), "")).collect();
        lexical.index(&many);
        let held = lexical.0.weighted_size();
        assert!(held <= CACHED_TOOLS, "{held}");
        assert!(!Arc::ptr_eq(&first, &lexical.index(&set)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_text_orders_all_tools_and_always_alike(query in any::<String>(), names in proptest::collection::btree_set("\\PC{1,12}", 0..20), description in any::<String>()) {
            let tools: Vec<Arc<ToolDefinition>> = names.iter().map(|name| tool(name, &description)).collect();
            let order = Lexical::default().order(&query, &tools);
            let mut reversed = tools.clone();
            reversed.reverse();
            prop_assert_eq!(&order, &Lexical::default().order(&query, &tools));
            let all: std::collections::BTreeSet<String> = order.iter().cloned().collect();
            prop_assert_eq!(all, names);
            prop_assert_eq!(order.len(), tools.len());
        }
    }
}
