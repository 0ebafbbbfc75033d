"""The pipeline on which an evaluation fine-tunes a model that was trained on IPUs."""

from relm.recipes.machine.pipeline import Pipeline


def split_tuning_batch(pipeline: Pipeline, batch_size: int) -> Pipeline:
    """Return the pipeline of fine-tuning, which has the layers and the precision of a training's pipeline.

    It has the most replicas, up to those of the training, that share the batch evenly and fill their stages. One call is one
    update, since the learning rate changes with each. The gradient is clipped, for which every replica has the whole optimizer
    state and a first moment in float32. What belongs to the vocabulary's head goes with it.

    Args:
        pipeline: the pipeline of the training.
        batch_size: sequences of an update.
    """
    own = pipeline.fine_tuning
    size, least = own.micro_batch_size, least_micro_batches(pipeline)
    fitting = [
        replicas
        for replicas in range(1, pipeline.replicas + 1)
        if batch_size % (size * replicas) == 0 and batch_size // (size * replicas) >= least
    ]
    if not fitting:
        raise ValueError(
            f"batch_size is {batch_size}, but the pipeline has {pipeline.stages} stages, which need a multiple of {size} "
            f"sequences, at least {size} x {least} = {size * least}; give such a batch_size, or run on another machine"
        )
    changed = {
        "replicas": fitting[-1],
        "gradient_accumulation": batch_size // (size * fitting[-1]),
        "micro_batch_size": size,
        "device_iterations": 1,
        "available_memory_proportion": own.available_memory_proportion or pipeline.available_memory_proportion,
        "loss_scaling": (own.loss_scaling or pipeline.loss_scaling).model_dump(),
        "replicated_tensor_sharding": False,
        "first_moment_precision": "float32",
    }
    of_training = {"vocabulary_serialisation", "loss_chunk", "stages_of_original", "phases", "fine_tuning"}
    return Pipeline.model_validate({**pipeline.model_dump(exclude=of_training), **changed})


def least_micro_batches(pipeline: Pipeline) -> int:
    """Return the micro-batches that fill the stages of one replica.

    >>> least_micro_batches(Pipeline(layers_per_ipu=[3, 7, 7, 7], gradient_accumulation=2050))
    9
    """
    return 2 * pipeline.stages - 1 if pipeline.ipus_per_replica > 1 else 1
