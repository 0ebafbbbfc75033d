"""Three complete lines of Python that use a published model, and its longest input."""

import json

from relm.recipes.plan import Plan

NEW_TOKENS = 40  # to generate, or half of the context if that is less


def list_usage_lines(plan: Plan, prompt: str, model: str) -> list[str]:
    """Return three lines of Python that load a model and print its output for a prompt."""
    kind = plan.recipe.model.declaration
    text = json.dumps(prompt, ensure_ascii=False)
    if kind.auto_class is None:
        return ["import subprocess", f'subprocess.run(["relm", "generate", "--model", "{model}", "--prompt", {text}])']
    new_tokens = min(NEW_TOKENS, context(plan) // 2)
    if kind.pipeline == "fill-mask":
        return [
            "from transformers import pipeline",
            f'fill = pipeline("fill-mask", model="{model}")',
            "print(fill(fill.tokenizer.mask_token)[0])",
        ]
    if kind.pipeline == "text-generation":
        return [
            "from transformers import pipeline",
            f'write = pipeline("text-generation", model="{model}")',
            f'print(write({text}, max_new_tokens={new_tokens})[0]["generated_text"])',
        ]
    return [
        f"from transformers import {kind.auto_class}, AutoTokenizer",
        f'model, read = {kind.auto_class}.from_pretrained("{model}"), AutoTokenizer.from_pretrained("{model}")',
        f'print(read.decode(model.generate(**read({text}, return_tensors="pt"), max_new_tokens={new_tokens})[0]))',
    ]


def context(plan: Plan) -> int:
    """Return the longest sequence that a model takes or, without such a limit, was trained on."""
    return plan.recipe.model.longest_sequence or max(phase.sequence_length for phase in plan.recipe.pretrain.values())


def describe_context(plan: Plan) -> str:
    """Return a sentence on the longest input of a model."""
    tokens = f"{context(plan):,} tokens"
    if plan.recipe.model.longest_sequence is None:
        return f"It was trained on sequences of at most {tokens}; longer ones are untested."
    if plan.recipe.model.declaration.pipeline == "text-generation":
        return f"Its context is {tokens}, prompt and continuation together."
    return f"Its input is at most {tokens}."
