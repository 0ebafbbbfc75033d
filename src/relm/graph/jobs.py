"""The planned job of each rule: its inputs, outputs and command, as Snakemake takes them.

An input whose content counts is `ancient`; its sidecar, which has its hash, is an ordinary input.
"""

import functools
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from snakemake.io import ancient
from snakemake.iocontainers import Wildcards

from relm.artifact import record_of
from relm.devices.ipu.instances import launch
from relm.errors import RelmError
from relm.graph.asking import PROJECT, report_faults, sidecars, strings
from relm.graph.variations import require_name
from relm.plan import data_jobs, run_jobs
from relm.plan.jobs import RecipeJob
from relm.recipes import identity
from relm.recipes.jobs import DataJob, DocumentsJob, ExamplesJob, KeptDocumentsJob, TokenizerJob
from relm.recipes.plan import REFERENCE, TRAINED, Plan
from relm.recipes.published_models import PICKLED_WEIGHTS, WEIGHTS_FILES

EDITED = "was it edited during the run? Run the same command again"


def plan_of_run(wildcards: Any) -> Plan:
    """Return the plan of the recipe that a path names or, of several seeds, of the run with the path's fingerprint."""
    plan = PROJECT.plan(wildcards.recipe)
    if not hasattr(wildcards, "fingerprint"):
        require_name(wildcards.recipe)
        return plan
    run = plan.find_run(wildcards.fingerprint)
    if run is None:
        raise RelmError(
            f"recipe {wildcards.recipe} now has fingerprint {plan.fingerprint}, not {wildcards.fingerprint}: {EDITED}"
        )
    return run


def require_key(path: Path | None, wildcards: Any, of: str = "") -> None:
    """Raise RelmError unless a product's path, None if nothing makes it, has the requested key; `of` names its maker."""
    if path is None or path.parent.name != wildcards.key:
        raise RelmError(
            f"{of or f'recipe {wildcards.recipe}'} now makes {path}, not key {wildcards.key}: was a recipe edited "
            "during the run? Run the same command again"
        )


def _find(kind: type[DataJob], wildcards: Any) -> Any:
    """Return the job that makes a product with the key and the dataset in a path."""
    return PROJECT.find_job(kind, wildcards.key, wildcards.get("dataset"))


def _download(kind: str, name: str, wildcards: Any) -> RecipeJob:
    """Return the download of the file of a dataset or test that a path names."""
    spec = PROJECT.path_of(data_jobs.FOLDERS[kind], name)
    files = PROJECT.dataset(name).files if kind == "dataset" else PROJECT.test(name).files
    if wildcards.shard not in files:
        raise RelmError(f"{spec}: has no file {wildcards.shard}; it has {', '.join(files)}")
    file = files[wildcards.shard]
    if file.key != wildcards.key:
        raise RelmError(f"{spec}: {wildcards.shard} has sha256 {file.key}..., not {wildcards.key}...: {EDITED}")
    folder = identity.work_folder() / "downloads" / data_jobs.FOLDERS[kind]
    return data_jobs.download(kind, name, file.sha256, folder / name / file.key / wildcards.shard)


def _model_file(wildcards: Any) -> RecipeJob:
    """Return the download of a model's file, or its copy from a local folder."""
    name, work = wildcards.model, identity.work_folder()
    model = PROJECT.model(name)
    content = identity.model_content(name, model, work / "folders")
    for files in (model.weights_files, model.tokenizer_files):
        part = identity.part_of(content, files)
        if identity.digest(part) == wildcards.key and wildcards.file in part:
            folder = work / "downloads" / "models" / name / wildcards.key
            folder = work / "models" / f"{name}-{wildcards.key}" if model.folder else folder
            return data_jobs.download("model", name, part[wildcards.file], folder / wildcards.file)
    source = f"folder {model.folder}" if model.folder else "its files"
    raise RelmError(f"{PROJECT.path_of('models', name)}: no {wildcards.file} with key {wildcards.key} is in {source}: {EDITED}")


def _convert_weights(wildcards: Any) -> RecipeJob:
    name, key, work = wildcards.model, wildcards.key, identity.work_folder()
    pickled = work / "downloads" / "models" / name / key / PICKLED_WEIGHTS
    return data_jobs.convert_weights(name, pickled, work / "converted" / f"{name}-{key}" / WEIGHTS_FILES[0])


def _evaluate(wildcards: Any) -> RecipeJob:
    plan = plan_of_run(wildcards)
    require_key(plan.evaluations(wildcards.of).get(wildcards.task), wildcards)
    return run_jobs.evaluate(plan, wildcards.of, wildcards.task)


def _verify(wildcards: Any, of: str) -> RecipeJob:
    plan = plan_of_run(wildcards) if of == TRAINED else _plan_of_reference(wildcards)
    require_key(plan.verdict(of), wildcards)
    return run_jobs.verify(plan, of)


def _plan_of_reference(wildcards: Any) -> Plan:
    """Return the plan of a run whose recipe names its authors' weights."""
    plan = plan_of_run(wildcards)
    if plan.reference_model is None:
        raise RelmError(
            f"recipe {plan.name} names no weights of its authors; set expect_reference to the name of a model in "
            "recipes/models/ with weights"
        )
    return plan


def _report(wildcards: Any) -> RecipeJob:
    plan = plan_of_run(wildcards)
    require_key(plan.report_folder / "report.html", wildcards)
    return run_jobs.report(plan)


_FIND: dict[str, Callable[[Any], RecipeJob]] = {
    "download_data": lambda each: _download("dataset", each.dataset, each),
    "download_model": _model_file,
    "copy_model": _model_file,
    "convert_weights": _convert_weights,
    "extract": lambda each: data_jobs.extract(_find(DocumentsJob, each), each.shard),
    "list_removed": lambda each: data_jobs.list_removed(_find(KeptDocumentsJob, each)),
    "remove_listed": lambda each: data_jobs.remove_listed(_find(KeptDocumentsJob, each), each.shard, each.split),
    "tokenizer": lambda each: data_jobs.make_tokenizer(_find(TokenizerJob, each)),
    "pregenerate": lambda each: data_jobs.pregenerate(_find(ExamplesJob, each), each.shard),
    "import_tokens": lambda each: data_jobs.import_tokens(_find(ExamplesJob, each), each.shard, each.split),
    "manifest": lambda each: data_jobs.manifest(_find(ExamplesJob, each)),
    "pretrain": lambda each: run_jobs.pretrain(plan_of_run(each), each.phase),
    "compile": lambda each: run_jobs.compile_programs(plan_of_run(each)),
    "download_test": lambda each: _download("test", each.test, each),
    "evaluate": _evaluate,
    "verify": lambda each: _verify(each, TRAINED),
    "verify_reference": lambda each: _verify(each, REFERENCE),
    "report": _report,
    "publish": lambda each: run_jobs.publish(plan_of_run(each), TRAINED),
    "publish_reference": lambda each: run_jobs.publish(_plan_of_reference(each), REFERENCE),
}


def find_job(rule: str, wildcards: Any) -> RecipeJob:
    """Return the planned job of a rule."""
    return _find_once(rule, tuple(wildcards.items()))


@functools.lru_cache(maxsize=10_000)
def _find_once(rule: str, values: tuple[tuple[str, str], ...]) -> RecipeJob:
    return _FIND[rule](Wildcards(fromdict=dict(values)))


def inputs(rule: str) -> Callable[[Any], dict[str, Any]]:
    """Return the input function of a rule, for `unpack`."""
    return report_faults(lambda wildcards: inputs_of(find_job(rule, wildcards)))


def inputs_of(job: RecipeJob) -> dict[str, Any]:
    """Return the inputs of a job as Snakemake takes them."""
    content = {name: ancient(strings(list(files))) for name, files in {**job.hashed, **job.listed}.items()}
    hashes = sidecars([path for files in job.hashed.values() for path in files])
    dated = {name: strings(list(files)) for name, files in {**job.dated, **job.recorded}.items()}
    inputs = {"sidecars": hashes, **content, **dated}
    if job.recorded:
        # Nothing is made again for a record that was deleted while its file stayed.
        files = [path for paths in job.recorded.values() for path in paths]
        inputs["records"] = ancient([str(record_of(path)) for path in files if record_of(path).is_file() or not path.is_file()])
    return inputs


def command(rule: str) -> Callable[..., str]:
    """Return the function of a rule's parameter with its command, for Snakemake's own paths.

    As it depends on resources, Snakemake makes nothing again if it changes; the key in the path identifies the job.
    """

    @report_faults
    def words(wildcards: Any, input: Any, output: Any, threads: int, resources: Any) -> str:
        job = find_job(rule, wildcards)
        places = {path: output[name] for name, path in job.outputs.items()}
        for name, files in job.inputs.items():
            found = input.get(name, [])
            places |= dict(zip(files, [found] if isinstance(found, str) else found, strict=False))
        started = launch(job.run, getattr(resources, "processes", 1), job.hosts)
        return shlex.join([*_set_work_folder(job.makes, places[job.makes]), *started, *job.command(places, threads)])

    return words


def _set_work_folder(path: Path, place: str) -> list[str]:
    """Return the word in front of a command that says where the work folder is, if Snakemake keeps files elsewhere.

    Without a shared file system it is the folder of Snakemake's own copies, so that steps find files by their planned paths.
    """
    elsewhere = place.removesuffix(str(path))
    return [f"RELM_WORK={elsewhere}{identity.work_folder()}"] if elsewhere and elsewhere != place else []
