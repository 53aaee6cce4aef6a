"""The checkpoints and images of one sharded model: writing them, and going on from them.

    engine.state.counted_boxes(), describe()  -->  checkpoint or image  -->  owned_boxes(), load()

Every method is collective over the mesh, unless it says otherwise.
"""

import os
import warnings
from functools import partial
from math import isfinite
from pathlib import Path

from ...arguments import is_integer, require
from ...checkpoint.attributes import Attributes
from ...checkpoint.background import PendingCheckpoint, Saver
from ...checkpoint.choice import Which, checked_choice
from ...checkpoint.fit import Fit, Wanted
from ...checkpoint.format.description import state_since, storable
from ...checkpoint.format.values import lost_in
from ...checkpoint.image import load_image, make_image
from ...checkpoint.load import Checkpoint
from ...checkpoint.pretrained.folder import TransformersFolder
from ...checkpoint.saving import Retention
from ...checkpoint.selection import Selection
from ...checkpoint.sources import Loaded, load_from
from ...checkpoint.store import CheckpointStore
from ...checkpoint.values import DataWriter
from ...comm.failure.agreement import by_first, collectively
from ...comm.same import alike, check_same, facts_of
from ...errors import CheckpointError, ShardingWarning
from ...files.paths import lasting_path, usable_path
from ...nn.features import input_features
from ...nn.kept import name_of
from ...nn.module import configuration_of
from ...nn.recorded import plain_defaults
from ...optim.average import AVERAGE
from ...optim.late import RatedRule
from ..step.recorder import CHECKPOINT
from .learning import History


class Checkpoints:
    """The reader and writer of the state of one engine (step/engine.py).

    strategy     the model's, as reports name it
    companions   {name: bytes} of files beside the tensors, from the checkpoint that the model went
                 on from
    data_position   as save() was given it, of the checkpoint that the model went on from
    saver        writes in the background; the clones of a model share it
    attributes   of its modules, as they were before the model was cut
    world        all ranks of the mesh
    """

    def __init__(
        self, engine, strategy: str, history: History, saver: Saver, attributes: Attributes
    ):
        self.companions: dict[str, bytes] = {}
        self.data_position: dict = {}
        self.saver = saver
        self.attributes = attributes
        self._has_warned = False
        self._engine, self._strategy = engine, strategy
        self._history = history
        self.world = engine.mesh.world

    # ---- writing ---------------------------------------------------------------------------------

    def image(self) -> bytes:
        """Return parameters, optimizer state and counts as an HDF5 image."""
        state = self._engine.state
        check_same(self.world, {}, call="serialize")
        return make_image(state.counted_boxes(), self.world, self.describe())

    def write_image(self, file) -> None:
        """Write image() to a file object of rank 0."""
        image = self.image()
        with collectively(self.world):
            if self.world.rank == 0:
                file.write(image)

    def save(self, path, kept: Retention, files_per_node: int | None, *said) -> str:
        """Write a checkpoint into folder `path` and return its own folder.

        said   arguments of describe()
        """
        with self._engine.listening.span(CHECKPOINT):
            path = self._agreed(path, kept, files_per_node)
            self.saver.wait()
            return self._store(path, files_per_node).save(
                self._engine.state.counted_boxes(),
                self.world,
                self.describe(*said),
                keep=kept.keep,
                keep_every=kept.every,
            )

    def save_async(
        self, path, kept: Retention, files_per_node: int | None, *said
    ) -> PendingCheckpoint:
        """Copy the state, and write a checkpoint of it in the background."""
        listening = self._engine.listening
        with listening.span(CHECKPOINT):
            path = lasting_path(self._agreed(path, kept, files_per_node))
            pending = self.saver.start(
                self._store(path, files_per_node),
                self._engine.state.counted_boxes(),
                self.describe(*said),
                kept,
            )
        listening.goes_on(pending)
        return pending

    def add_companions(self, companions: dict[str, bytes]) -> None:
        """Keep these files too in every checkpoint from now on. No communication."""
        self.companions = {**self.companions, **companions}

    def _store(self, path, files_per_node: int | None) -> CheckpointStore:
        copies = self._engine.device.copies
        team = None if files_per_node is None else self._engine.mesh.team(files_per_node)
        return CheckpointStore(path, copies=copies, companions=self.companions, team=team)

    def check(self) -> None:
        """Raise CheckpointError, on all ranks, unless what a checkpoint says of the model can be
        stored. Collective.
        """
        with collectively(self.world):
            storable(self.describe())

    def describe(self, data_position: dict | None = None, validation: dict | None = None) -> dict:
        """Return what a checkpoint stores beside the tensors. No communication."""
        engine, state = self._engine, self._engine.state
        loss = self._history.last_loss
        features = input_features(engine.model)
        return {
            **state.counts(),
            "objectives": dict(state.updates) if engine.plan.owners else None,
            "compute_dtype": str(engine.plan.numerics.compute_dtype),
            "blas": engine.config.blas,
            "last_loss": loss if loss is None or isfinite(loss) else None,  # JSON has no NaN
            "seed": engine.config.seed,
            "mesh": engine.mesh.shape.sizes,
            "strategy": self._strategy,
            "active_features": None if features is None else list(features.active),
            "evaluation": self._history.stored_evaluation(),
            "model": self._stored_model(),
            "optimizer": {**state.description(), "state_since": state.state_since},
            "data_position": data_position or {},
            "validation": validation,
            "frozen": state.frozen(),
        }

    def _describe_model(self, writer: DataWriter | None = None) -> dict:
        model = self._engine.model
        cls = type(model)
        return {
            "class": cls.__name__,
            "configuration": (writer or DataWriter()).data(configuration_of(model)),
            "import": f"{cls.__module__}:{cls.__qualname__}",
        }

    def _stored_model(self) -> dict:
        """Return what builds the model again, and warn on rank 0 once if it does not."""
        described = {**self._describe_model(), "attributes": self.attributes.now()}
        if self.world.rank == 0 and not self._has_warned:
            self._warn_of_lost(described)
        self._has_warned = True
        return described

    def _warn_of_lost(self, described: dict) -> None:
        found = next(lost_in(described["configuration"]), None)
        lost = None if found is None else f"the argument {found[0]} = {found[1]}"
        if name_of(type(self._engine.model)) != described["import"]:
            lost = f"its class, since its module has no {described['import'].partition(':')[2]}"
        if lost is not None:
            warnings.warn(
                f"this checkpoint holds the weights of the {described['class']}, but not {lost}: "
                "sk.load will want factory=, a function that builds the same model",
                ShardingWarning,
                stacklevel=6,
            )

    def _agreed(self, path, kept: Retention, files_per_node: int | None) -> Path:
        """Return the path, if all ranks pass the same, and the same others. Collective."""
        with alike(self.world, call="save_model") as facts:
            path = _folder(path)
            is_count = files_per_node is None or is_integer(files_per_node, at_least=1)
            require(is_count, "files_per_node", files_per_node, "an integer of at least 1, or None")
            others = {"keep": kept.keep, "keep_every": kept.every, "files_per_node": files_per_node}
            facts |= facts_of({"path": str(path.resolve()), **others})
        return path

    # ---- reading ---------------------------------------------------------------------------------

    def load_image(self, data: bytes, selection: dict) -> dict[str, list[str]]:
        """Go on from an image, and return what it did not fit in.

        selection   arguments of Selection.of
        Errors, on all ranks: CheckpointError, the model is unchanged then; ValueError on a
        selection that means nothing.
        """
        with alike(self.world, call="deserialize") as facts:
            selected = Selection.of(**selection)
            facts |= facts_of(vars(selected))
        wanted = self._wanted(selected)
        fit = load_image(data, self._engine.state.owned_boxes(), wanted, self.world)
        self._adopt(fit)
        return fit.report()

    def read_image(self, file, selection: dict) -> dict[str, list[str]]:
        """Go on from an image in a file object of rank 0, as load_image()."""
        with collectively(self.world):
            Selection.of(**selection)
            data = file.read() if self.world.rank == 0 else None
        return self.load_image(self.world.broadcast_object(data, 0), selection)

    def load(self, path, selection: dict, which: Which) -> dict:
        """Go on from what load_model takes at `path`, and return what it does.

        selection   arguments of Selection.of
        which       of several checkpoints, see checkpoint/choice.py
        Errors, on all ranks: FileNotFoundError, PermissionError, CheckpointError, ValueError on a
        selection that means nothing; the model is unchanged then.
        """
        several = isinstance(path, tuple)  # folders, of which the newest is taken
        with alike(self.world, call="load_model") as facts:
            selected, which = Selection.of(**selection), checked_choice(which)
            paths = [_folder(each) for each in (path if several else [path])]
            places = ", ".join(str(each.resolve()) for each in paths)
            facts |= facts_of({**vars(selected), "path": places, "checkpoint": which})
        self.saver.wait()
        loaded = self._read(tuple(paths) if several else paths[0], self._wanted(selected), which)
        self._adopt(loaded.fit)
        self._take_companions(loaded.source)
        if self.world.rank == 0 and loaded.skipped:
            warnings.warn(
                f"{loaded.source.folder} is taken; passed over: {'; '.join(loaded.skipped)}",
                stacklevel=3,
            )
        return loaded.report()

    def _read(self, path: Path | tuple[Path, ...], wanted: Wanted, which: Which) -> Loaded:
        """Fill the owned arrays from what is there; _adopt() comes next.

        Errors: as load(). Arrays that may be half filled then are made again.
        """
        state = self._engine.state
        is_initial = state.weights.are_seeded and not state.step_number
        try:
            return load_from(
                path,
                wanted,
                state.owned_boxes(),
                self.world,
                self._engine.device.copies,
                expendable=is_initial,
                which=which,
            )
        except (CheckpointError, OSError):  # on all ranks
            if is_initial:
                state.start_over()
            raise

    def _wanted(self, selected: Selection) -> Wanted:
        """Return what the model takes from a checkpoint."""
        state, features = self._engine.state, input_features(self._engine.model)
        writer = DataWriter()
        return Wanted(
            state.tensors(),
            self._describe_model(writer),
            None if features is None else len(features.names),
            state.description(),
            isinstance(state.rule, RatedRule),
            selected,
            awaited=state.weights.awaited(),
            frozen=tuple(state.frozen()),
            defaults=partial(_defaults, writer, type(self._engine.model)),
        )

    def _adopt(self, fit: Fit) -> None:
        """Go on from the arrays that were filled, and warn on rank 0 of what was not."""
        self._engine.state.clear(fit.missing_state if fit.only is None else None)
        if fit.missing_buffers:
            self._engine.state.buffers.start_over()
        self.go_on_from(fit.goes_on_from())
        if fit.only is None and AVERAGE in fit.missing_state:
            self._engine.state.begin_averages()
        if self.world.rank == 0:
            fit.warn()

    def go_on_from(self, description: dict) -> None:
        """Go on at the step of a describe(), after the owned boxes were filled."""
        engine = self._engine
        engine.drop_gradients()
        engine.state.restore(description, state_since(description))
        self.data_position = description.get("data_position") or {}
        self._history.go_on_from(description)
        features = input_features(engine.model)
        if features is not None and description["active_features"] is not None:
            features.activate(description["active_features"])

    def _take_companions(self, checkpoint: Checkpoint | TransformersFolder) -> None:
        """Keep the files beside the tensors on all ranks, so that any rank may die."""
        self.companions = by_first(self.world, checkpoint.companions)

    # ---- other models ----------------------------------------------------------------------------

    def for_clone(self, history: History) -> "Checkpoints":
        """Return checkpoints for a clone: of the same engine, with another history."""
        other = Checkpoints(self._engine, self._strategy, history, self.saver, self.attributes)
        other.companions = self.companions
        return other

    def succeed(self, other: "Checkpoints") -> None:
        """Go on with the companions and attributes of a model, of which this one is a copy."""
        self.companions = other.companions
        self.attributes.succeed(other.attributes)


def _defaults(writer: DataWriter, model: type) -> dict[str, dict]:
    """Return {class: {argument: data}} of a model and what it is made of, as it was described."""
    makers = {f"{model.__module__}:{model.__qualname__}": model, **writer.makers}
    return {name: writer.data(plain_defaults(cls)) for name, cls in makers.items()}


def _folder(path) -> Path:
    """Return the path of a folder that a user gave. Errors: TypeError."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path = {path!r}; wanted the path of a folder")
    return Path(usable_path(path))
