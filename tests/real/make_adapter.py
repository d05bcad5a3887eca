"""Write a LoRA adapter for the tiny model: `make_adapter.py MODEL OUT SEED`, with the Python of the engine's install.

Its numbers are random and large, so that its greedy answers are none of the model's own. One seed, one adapter.
"""

import json
import sys
from pathlib import Path
from typing import Final

import numpy as np  # type: ignore[import-not-found]  # the engine's environment has it, ours does not
from safetensors.numpy import save_file  # type: ignore[import-not-found]

RANK: Final = 8


def main(model: Path, out: Path, seed: int) -> None:
    """Change the queries, the values and the way out of each layer's perceptron."""
    shape = json.loads((model / "config.json").read_text())
    hidden, head = shape["hidden_size"], shape["head_dim"]
    changed = {
        "self_attn.q_proj": (hidden, head * shape["num_attention_heads"]),
        "self_attn.v_proj": (hidden, head * shape["num_key_value_heads"]),
        "mlp.down_proj": (shape["intermediate_size"], hidden),
    }
    chance = np.random.default_rng(seed)
    tensors = {}
    for layer in range(shape["num_hidden_layers"]):
        for name, (width_in, width_out) in changed.items():
            place = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{place}.lora_A.weight"] = chance.standard_normal((RANK, width_in)).astype(np.float32)
            tensors[f"{place}.lora_B.weight"] = chance.standard_normal((width_out, RANK)).astype(np.float32)
    out.mkdir(parents=True)
    save_file(tensors, out / "adapter_model.safetensors")
    told = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(model),
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "target_modules": [name.partition(".")[2] for name in changed],
    }
    (out / "adapter_config.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
