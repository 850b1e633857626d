"""Contents of a stored run: its data, its models and the graph that it learned."""

from collections.abc import Sequence
from pathlib import Path

from fedlap.algorithms import ALGORITHMS, GraphLearning
from fedlap.data.federation import Federation
from fedlap.errors import InputError
from fedlap.experiments.content_digest import digest_content
from fedlap.experiments.experiment import Experiment
from fedlap.experiments.fit_description import FIT_FILE
from fedlap.experiments.group_folder import GroupFolder
from fedlap.experiments.prepare import Loader, Prepared
from fedlap.experiments.run_folder import EXPERIMENT_FILE, RunFolder
from fedlap.graph import Graph
from fedlap.personal import Personals
from fedlap.training.jobs import bind_algorithm
from fedlap.training.result import Result


def load_experiment_data(experiment: Experiment) -> tuple[Federation, Graph | None]:
    """Load the data of an experiment; raise if they differ from those that its run was trained on."""
    federation, known = experiment.load()
    if experiment.content not in ("", digest_content(federation)):
        raise InputError(
            f"the data of {experiment.title!r} have changed since this run; restore the original files"
        )
    return federation, known


def load_learned_graph(run: RunFolder, clients: Sequence[str] | None = None) -> tuple[int, Graph] | None:
    """Return the round of the last checkpoint and its learned graph; None if the run learns none."""
    method = ALGORITHMS.get(run.experiment.algorithm["name"])
    if method is None or not issubclass(method, GraphLearning):
        return None
    checkpoints = run.read_checkpoints()[0]
    if not checkpoints:
        return None
    return checkpoints[0].round, method.learned_graph(run.load_progress(checkpoints[0]).server, clients)


def load_trained_models(run: Path) -> Personals:
    """Load the personal models of a run."""
    if (run / "models" / "about.json").exists():
        return Personals.load(run / "models")
    if not run.exists():
        raise InputError(f"no run {str(run)!r}; pass the folder of a run")
    if (run / EXPERIMENT_FILE).exists():
        raise InputError(f"the run {str(run)!r} has no models yet; finish it with `fedlap resume {run}`")
    if (run / FIT_FILE).exists():
        raise InputError(f"the run {str(run)!r} has no models yet; finish it with fedlap.fit in Python")
    group = GroupFolder.find(run)
    if group is not None:
        raise group.build_run_error()
    raise InputError(f"{str(run)!r} is not a run (it has no {EXPERIMENT_FILE}); pass the folder of a run")


def load_result(run: RunFolder, prepared: Prepared | None = None) -> Result:
    """Load the models, states and scores of a run at its last checkpoint.

    prepared: the data and the method of the run; by default they are built from its description.
    """
    experiment = run.experiment
    if run.get_status() == "diverged":
        raise run.read_failure()
    job, model = Loader().build_job(experiment) if prepared is None else (prepared.job, prepared.model)
    algorithm, _ = bind_algorithm(job.algorithm, job.federation, job.model)
    checkpoints, rejected = run.read_checkpoints()
    if not checkpoints:
        raise InputError(rejected[0] if rejected else f"{run.name} has no checkpoint; finish it first")
    models = load_trained_models(run.folder).models
    return Result(algorithm, job.federation, model, models, run.load_progress(checkpoints[0]))
