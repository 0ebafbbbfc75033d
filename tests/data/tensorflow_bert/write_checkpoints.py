"""Write the checkpoints beside this file with TensorFlow itself, which the project does not install (2.21 wrote them).

python -m venv /tmp/tensorflow && /tmp/tensorflow/bin/pip install tensorflow-cpu==2.21.0
/tmp/tensorflow/bin/python tests/data/tensorflow_bert/write_checkpoints.py
"""

import sys
from pathlib import Path

import tensorflow as tf

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1]))

from tensorflow_variables import Array, draw, variables  # noqa: E402


def save(name: str, values: dict[str, Array], dtype: str) -> None:
    """Write a checkpoint; the moments and counters of an optimizer keep their own types."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for variable, value in values.items():
            kept = "float32" if variable.endswith(("lamb_m", "lamb_v")) else "int64" if variable == "global_step" else dtype
            tf.compat.v1.get_variable(variable, initializer=value.astype(kept))
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver()
        saver.save(session, str(FOLDER / name), write_meta_graph=False, write_state=False)


graphcore = variables("graphcore", biases=False, transform=False)
moments = {
    f"{name}/{kind}": draw(kind + name, graphcore[name].shape) for name in list(graphcore)[:4] for kind in ("lamb_m", "lamb_v")
}
save("graphcore", graphcore | moments | {"global_step": draw("global_step", ())}, "float16")
save("google", variables("google"), "float32")
