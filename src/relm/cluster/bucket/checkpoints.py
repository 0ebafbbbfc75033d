"""Keep a run's checkpoints and logs in a store while it trains, for machines whose disk is lost with the job."""

import contextlib
import logging
import threading
from collections.abc import Iterator

from relm.cluster.bucket.pull import Puller
from relm.cluster.bucket.push import push_run
from relm.cluster.bucket.run_files import is_of_run
from relm.cluster.bucket.store import Index, Store
from relm.errors import RelmError
from relm.recipes.plan import Plan
from relm.training.kill_points import kill_point

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 1.0


@contextlib.contextmanager
def keep_in_store(plan: Plan) -> Iterator[None]:
    """Pull a newer checkpoint of a run from `run.checkpoints_to`, and push each later one during the block.

    A thread pushes, so training does not wait. The end of the block waits for the last push, even after an error or a signal.
    Raise RelmError if the store cannot be used at the start; later faults are warnings, since training needs no store.
    """
    if plan.recipe.run.checkpoints_to is None:
        yield
        return
    store = Store(plan.recipe.run.checkpoints_to)
    pull_run_folder(store, plan)
    ended = threading.Event()
    thread = threading.Thread(target=_push_new, args=(store, plan, ended), name="checkpoints to store")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def pull_run_folder(store: Store, plan: Plan) -> None:
    """Pull the run's folder if the store has a later step."""
    names = [name for name in store.indexes() if (name.name, name.fingerprint) == (plan.run_name, plan.fingerprint)]
    if not names:
        return
    files = [entry for entry in store.index(names[-1]).files if is_of_run(plan, entry.path)]
    puller = Puller(store, plan, Index(name=plan.run_name, fingerprint=plan.fingerprint, files=files))
    here, there = puller.find_newest_steps()
    if there > here:
        logger.info("%s from %s", puller.pull(), store.url)


def _push_new(store: Store, plan: Plan, ended: threading.Event) -> None:
    """Push the run's folder after each new checkpoint, and once at the end."""
    pushed, unlisted = set[str](), set[str]()
    while True:
        is_last = ended.wait(SECONDS_BETWEEN_LOOKS)
        found = {str(path) for path in plan.run_folder.glob("*/checkpoints/step-*/state.json")}
        if is_last or not found <= pushed:
            try:
                logger.info("%s to %s", push_run(store, plan, run_folder_alone=True, unlisted=unlisted), store.url)
                _remove_superseded(store, plan)
                pushed = found
                kill_point("checkpoints-pushed")
            except RelmError as error:
                again = "the newest checkpoint is only on this machine" if is_last else "trying again"
                logger.warning("%s; %s", error, again)
        if is_last:
            return


def _remove_superseded(store: Store, plan: Plan) -> None:
    """Remove all but the newest two indexes of the run, and checkpoints that no index in the store lists.

    Otherwise a long run would fill the store with every checkpoint it ever saved.
    """
    names = store.indexes()
    old = [name for name in names if (name.name, name.fingerprint) == (plan.run_name, plan.fingerprint)][:-2]
    if not old:
        return
    checkpoints = {entry.sha256 for name in old for entry in store.index(name).files if "/checkpoints/" in entry.path}
    needed = {entry.sha256 for name in names if name not in old for entry in store.index(name).files}
    store.remove([*map(str, old), *(f"objects/{sha256}" for sha256 in sorted(checkpoints - needed))])
