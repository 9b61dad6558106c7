"""A tiny random Granite around a genuine tokenizer: the folder that SGLang serves in tests.

Its answers are noise; its vocabulary, IDs and chat template are the real ones. Granite, because for that model type
transformers 5 takes a tokenizer.json as it is; for others (Qwen2, Llama) it puts parts of its own in place of some of
the file's. Deterministic: the same arguments give the same bytes, in any environment with numpy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

WIDTH, LAYERS, HEADS, INNER = 64, 2, 4, 128
CONTEXT_TOKENS = 32_768


def write_model(
    directory: Path,
    *,
    tokenizer: bytes,
    settings: Mapping[str, object],
    template: str | None = None,
    instead_of: Mapping[str, object] | None = None,
) -> Path:
    """Fill `directory` and return it. `settings` are those of tokenizer_config.json.

    With `instead_of`, another model's config.json, the folder has no weights: enough to tokenize with, not to serve.
    """
    directory.mkdir(parents=True, exist_ok=True)
    ids = vocabulary(json.loads(tokenizer))
    size = -(-(max(ids.values()) + 1) // 64) * 64
    (directory / "tokenizer.json").write_bytes(tokenizer)
    _write_json(directory / "tokenizer_config.json", {"model_max_length": CONTEXT_TOKENS, **settings})
    if template is not None:
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    end = ids.get(str(settings.get("eos_token")), 0)
    _write_json(directory / "config.json", _config(size, end) if instead_of is None else instead_of)
    _write_json(directory / "generation_config.json", {"eos_token_id": [end], "do_sample": False})
    if instead_of is None:
        _write_safetensors(directory / "model.safetensors", dict(_weights(size)))
    return directory


def vocabulary(document: Mapping[str, object]) -> dict[str, int]:
    """Token to ID: the model's and the added ones."""
    model, added = document["model"], document.get("added_tokens")
    assert isinstance(model, dict)
    assert isinstance(added, list)
    vocab = model["vocab"]
    ids = {token: number for number, (token, _) in enumerate(vocab)} if isinstance(vocab, list) else dict(vocab)
    return ids | {token["content"]: token["id"] for token in added}


def _config(vocab_size: int, end: int) -> dict[str, object]:
    return {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "vocab_size": vocab_size,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rope_theta": 1_000_000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": end,
        "torch_dtype": "bfloat16",
    }


def _weights(vocab_size: int) -> Iterator[tuple[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]]:
    random = np.random.default_rng(0)

    def noise(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return random.normal(0, 0.02, shape).astype(np.float32)

    yield "model.embed_tokens.weight", noise(vocab_size, WIDTH)
    yield "lm_head.weight", noise(vocab_size, WIDTH)
    yield "model.norm.weight", np.ones(WIDTH, np.float32)
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{name}.weight", np.ones(WIDTH, np.float32)
        for name in ("q_proj", "k_proj", "v_proj"):
            yield f"{layer}.self_attn.{name}.weight", noise(WIDTH, WIDTH)
        yield f"{layer}.self_attn.o_proj.weight", noise(WIDTH, WIDTH)
        for name in ("gate_proj", "up_proj"):
            yield f"{layer}.mlp.{name}.weight", noise(INNER, WIDTH)
        yield f"{layer}.mlp.down_proj.weight", noise(WIDTH, INNER)


def _write_safetensors(path: Path, tensors: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]) -> None:
    """bfloat16: the upper half of each float32. Layout: header length (8 bytes), JSON header, the tensors' bytes."""
    header: dict[str, object] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + 2 * tensor.size
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            file.write((tensor.view(np.uint32) >> 16).astype("<u2").tobytes())


def _write_json(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
