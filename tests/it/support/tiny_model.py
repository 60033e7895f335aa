#!/usr/bin/env python3
"""Writes a model with random weights, a vocabulary of bytes, and 32 dimensions: `tiny_model.py FILE`.

The next token depends on the last one alone: the model begins a call with `<fn>`, ends the call after its object, and then ends its
answer. The grammar that a server derives from its tools writes the rest.
"""
import sys

import gguf
import numpy

WIDTH, HEADS, INNER, CONTEXT = 32, 4, 64, 65536

random = numpy.random.default_rng(7)
tokens = [b"<unk>", b"<s>", b"</s>"] + [f"<0x{byte:02X}>".encode() for byte in range(256)]
kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256

writer = gguf.GGUFWriter(sys.argv[1], "llama")
writer.add_context_length(CONTEXT)
writer.add_embedding_length(WIDTH)
writer.add_block_count(1)
writer.add_feed_forward_length(INNER)
writer.add_head_count(HEADS)
writer.add_layer_norm_rms_eps(1e-5)
writer.add_rope_dimension_count(WIDTH // HEADS)
writer.add_vocab_size(len(tokens))
writer.add_tokenizer_model("llama")
writer.add_token_list(tokens)
writer.add_token_scores([0.0] * len(tokens))
writer.add_token_types(kinds)
writer.add_unk_token_id(0)
writer.add_bos_token_id(1)
writer.add_eos_token_id(2)
writer.add_add_space_prefix(False)

shapes = {
    "token_embd": (len(tokens), WIDTH),
    "output": (len(tokens), WIDTH),
    "blk.0.attn_q": (WIDTH, WIDTH),
    "blk.0.attn_k": (WIDTH, WIDTH),
    "blk.0.attn_v": (WIDTH, WIDTH),
    "blk.0.attn_output": (WIDTH, WIDTH),
    "blk.0.ffn_gate": (INNER, WIDTH),
    "blk.0.ffn_up": (INNER, WIDTH),
    "blk.0.ffn_down": (WIDTH, INNER),
}
tensors = {name: random.normal(0, 0.1, shape).astype(numpy.float32) for name, shape in shapes.items()}
for name in ("blk.0.attn_output", "blk.0.ffn_down"):
    tensors[name][:] = 0


def token(text):
    return 3 + ord(text)


for before, after in [("\n", token("<")), ("}", token("<")), ("<", token("f")), ("f", token("n")), ("n", token(">")), (">", 2)]:
    tensors["output"][after] += 10 * tensors["token_embd"][token(before)]
for name, tensor in tensors.items():
    writer.add_tensor(name + ".weight", tensor)
for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
    writer.add_tensor(name + ".weight", numpy.ones(WIDTH, numpy.float32))

writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
