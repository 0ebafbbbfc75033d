"""Make the golden of llm.c's train_gpt2.c: `python tests/oracles/make_llm_c.py FOLDER`, a checkout of karpathy/llm.c, with gcc.

A driver includes train_gpt2.c, as its own test_gpt2.c does, and calls its functions in the order and with the arguments of its
main, which ends after 40 steps and does not write the weights. Nothing in FOLDER is changed.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import llm_c
import numpy as np
from golden_files import STEPS, Golden, draw_weights, hash_batch, hash_weights, read_commit_of, write_golden

SEQUENCES = 2 * llm_c.BATCH
DRIVER = """
#define TESTING
#include "train_gpt2.c"

int main(int argc, char** argv) {
    int steps = atoi(argv[3]), B = atoi(argv[4]), T = atoi(argv[5]);
    GPT2 model;
    DataLoader loader;
    gpt2_build_from_checkpoint(&model, argv[1]);
    dataloader_init(&loader, argv[2], B, T, 0, 1, 1);
    FILE* record = fopen(argv[6], "wb");
    for (int step = 0; step < steps; step++) {
        dataloader_next_batch(&loader);
        gpt2_forward(&model, loader.inputs, loader.targets, B, T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        double squares = 0.0, loss = model.mean_loss;
        for (size_t i = 0; i < model.num_parameters; i++) {
            squares += (double) model.grads_memory[i] * model.grads_memory[i];
        }
        double norm = sqrt(squares);
        fwrite(&loss, sizeof(double), 1, record);
        fwrite(&norm, sizeof(double), 1, record);
        fwrite(loader.inputs, sizeof(int), B * T, record);
        fwrite(loader.targets, sizeof(int), B * T, record);
        gpt2_update(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.0f, step + 1);
    }
    fwrite(model.params_memory, sizeof(float), model.num_parameters, record);
    return fclose(record);
}
"""
PATCHED = (
    "A driver stands in for main: the same calls with the same arguments, 100 times, without validation and samples. It writes "
    "the loss, the norm of the gradient and the batch of each step, and the weights at the end.",
    "The checkpoint that main reads is written by the script, with twin size and the drawn weights.",
)


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's arrays, in their order in the file."""
    layers, width = llm_c.LAYERS, llm_c.HIDDEN_SIZE
    vectors = {"qkvb": 3 * width, "fcb": 4 * width}
    matrices = {
        "qkvw": (3 * width, width),
        "attprojw": (width, width),
        "fcw": (4 * width, width),
        "fcprojw": (width, 4 * width),
    }
    outside = {"wte": (llm_c.VOCABULARY_SIZE, width), "wpe": (llm_c.SEQUENCE_LENGTH, width), "lnfw": (width,), "lnfb": (width,)}
    return {
        name: outside[name] if name in outside else (layers, *matrices.get(name, (vectors.get(name, width),)))
        for name in llm_c.ARRAYS
    }


def write_inputs(folder: Path) -> str:
    """Write the checkpoint and the shards, and return the sha256 of the weights."""
    drawn = draw_weights(shapes())
    header = np.zeros(256, dtype="<i4")
    sizes = (llm_c.SEQUENCE_LENGTH, llm_c.VOCABULARY_SIZE, llm_c.LAYERS, llm_c.HEADS, llm_c.HIDDEN_SIZE, llm_c.VOCABULARY_SIZE)
    header[:8] = 20240326, 3, *sizes
    (folder / "model.bin").write_bytes(header.tobytes() + b"".join(drawn[name].tobytes() for name in llm_c.ARRAYS))
    for number, tokens in enumerate(llm_c.draw_shards()):
        header = np.zeros(256, dtype="<i4")
        header[:3] = 20240520, 1, len(tokens)
        (folder / f"shard_{number}.bin").write_bytes(header.tobytes() + tokens.astype("<u2").tobytes())
    return hash_weights(drawn)


def run_original(original: Path, folder: Path) -> Golden:
    """Compile and run the driver, and return what the functions of train_gpt2.c did."""
    initial = write_inputs(folder)
    (folder / "driver.c").write_text(DRIVER)
    # Without -Ofast of its Makefile, which lets the compiler change the order of sums.
    options = ["-O3", "-Wno-unused-result", f"-I{original}"]
    subprocess.run(["gcc", *options, "driver.c", "-o", "driver", "-lm"], cwd=folder, check=True)
    sizes = map(str, (STEPS, SEQUENCES, llm_c.SEQUENCE_LENGTH))
    subprocess.run(["./driver", "model.bin", "shard_*.bin", *sizes, "record"], cwd=folder, check=True)
    tokens = ("<i4", (SEQUENCES, llm_c.SEQUENCE_LENGTH))
    step_type = np.dtype([("loss", "<f8"), ("norm", "<f8"), ("inputs", *tokens), ("targets", *tokens)])
    content = (folder / "record").read_bytes()
    steps = np.frombuffer(content, dtype=step_type, count=STEPS)
    values, final, begun = np.frombuffer(content, dtype="<f4", offset=steps.nbytes), {}, 0
    for name, shape in shapes().items():
        final[name] = values[begun : begun + np.prod(shape)].reshape(shape)
        begun += int(np.prod(shape))
    assert begun == len(values)
    version = subprocess.run(["gcc", "-dumpfullversion"], check=True, capture_output=True, text=True).stdout.strip()
    return Golden(
        original="karpathy/llm.c, train_gpt2.c",
        commit=read_commit_of(original),
        command="python tests/oracles/make_llm_c.py FOLDER",
        patched=PATCHED,
        versions={"gcc": version},
        initial_sha256=initial,
        batches_sha256=[hash_batch([step["inputs"], step["targets"]]) for step in steps],
        losses=steps["loss"].tolist(),
        gradient_norms=steps["norm"].tolist(),
        learning_rates=[float(np.float32(1e-4))] * STEPS,
        final=final,
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        write_golden(llm_c.LLM_C.name, run_original(Path(sys.argv[1]).resolve(), Path(temporary)))
