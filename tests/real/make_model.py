"""Write a checkpoint so small that any CPU serves it: random Qwen3 weights and a tokenizer learned from this Python.

`make_model.py OUT`, with the Python of the engine's environment. What such a model says is noise; everything around it
(server, scheduler, KV blocks, prefix cache, tool parser, metrics) is the engine's own. The seed is fixed, so one Python
version always gets one model, and temperature 0 always gets one answer, which does not end. Sampled answers do.
"""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

END_OF_TURN: Final = "<|im_end|>"
SPECIAL_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", END_OF_TURN)
VOCABULARY: Final = 8_192
CONTEXT_TOKENS: Final = 262_144
ENDS_ONE_TOKEN_IN: Final = 16
"""Noise hardly ever holds the end of a turn. So that a sampled answer ends as a real one does, this share of all tokens
ends it too."""

# Turns in ChatML. Content may be a string or a list of parts, of which only text is shown; tools stand in a first turn
# of their own, so that a tool list costs prompt tokens as it does with a real model.
CHAT_TEMPLATE: Final = """\
{%- macro said(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}{%- for part in content -%}{{ part.text | default('') }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- if tools -%}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for turn in messages -%}<|im_start|>{{ turn.role }}
{{ said(turn.content) }}{% if turn.tool_calls %}{{ turn.tool_calls | tojson }}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""


def corpus() -> Iterator[str]:
    """Text that every machine has: the standard library's own top-level modules."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for module in sorted(library.glob("*.py")):
        yield module.read_text(encoding="utf-8", errors="replace")


def make_tokenizer() -> Any:
    """A byte-level BPE, so any input has tokens; wrapped as transformers expects it."""
    from tokenizers import (  # type: ignore[import-not-found]  # the engine's environment has it, ours does not
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )
    from transformers import PreTrainedTokenizerFast  # type: ignore[import-not-found]

    learned = Tokenizer(models.BPE())
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learned.train_from_iterator(corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=learned,
        eos_token=END_OF_TURN,
        pad_token=SPECIAL_TOKENS[0],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_TOKENS,
    )


def ending_tokens(tokenizer: Any) -> list[int]:
    """Every so many tokens one; none of white space, which is what a greedy answer is made of."""
    candidates = range(len(SPECIAL_TOKENS), len(tokenizer), ENDS_ONE_TOKEN_IN)
    return [token for token in candidates if tokenizer.decode([token]).strip()]


def make_weights(tokenizer: Any) -> Any:
    """Two small layers. With tied embeddings a greedy answer repeats itself: steadier than a choice of near-equals."""
    import torch  # type: ignore[import-not-found]
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(20_250)
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_TOKENS,
        eos_token_id=tokenizer.convert_tokens_to_ids(END_OF_TURN),
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(shape).to(torch.bfloat16)


def main(out: Path) -> None:
    """Write the checkpoint beside its place and move it there when complete, so that half a model is never served."""
    tokenizer = make_tokenizer()
    weights = make_weights(tokenizer)
    unfinished = out.with_name(out.name + ".unfinished")
    tokenizer.save_pretrained(unfinished)
    end_of_turn = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    weights.generation_config.eos_token_id = [end_of_turn, *ending_tokens(tokenizer)]
    weights.save_pretrained(unfinished)
    unfinished.rename(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
