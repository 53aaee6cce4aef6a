"""Files and images of a model's state: the half of a sharded model or optimizer that keeps it.

    save_model(path)    -->  a checkpoint in a folder      -->  load_model(path)
    serialize()         -->  an HDF5 image, as bytes       -->  deserialize(data)
    save_state(file)    -->  the image in an open file     -->  load_state(file)

Any mesh and policy reads what any other wrote.
"""

from typing import TYPE_CHECKING, Any

from ...annotations import FilePath
from ...checkpoint.background import PendingCheckpoint
from ...checkpoint.choice import NEWEST
from ...checkpoint.selection import Selection
from ...checkpoint.store import warn_of_skipped
from ...comm.failure.agreement import collectively


class Stored:
    """The contract of what can be written to files, and go on from them.

    Attributes
    ----------
    checkpoints
        The part that reads and writes (checkpoints.py); a class that derives from this one has it.

    Notes
    -----
    "Collective": all ranks of the mesh must call it.
    """

    if TYPE_CHECKING:

        @property
        def checkpoints(self) -> Any: ...  # Checkpoints

    @property
    def companions(self) -> dict[str, bytes]:
        """Files beside the tensors, from the checkpoint that this model went on from."""
        return self.checkpoints.companions

    def add_companions(self, companions: dict[str, bytes]) -> None:
        """Keep these files too, {name: content}, in every checkpoint from now on.

        No communication: all ranks pass the same. The names are those of
        checkpoint/format/companions.py.

        Parameters
        ----------
        companions
            {name: content}.
        """
        self.checkpoints.companions = {**self.checkpoints.companions, **companions}

    def serialize(self) -> bytes:
        """Return parameters, optimizer state and step as an HDF5 image, the same on all ranks.

        Collective. The files of a tokenizer and the like, which a converted model keeps in its
        checkpoints, are not in it.
        """
        return self.checkpoints.image()

    def deserialize(
        self, data: bytes, *, only: str | None = None, strict: bool = True, names: Any = None
    ) -> dict[str, list[str]]:
        """Go on from an image, made under any mesh and policy.

        Collective: all ranks pass the same bytes.

        Parameters
        ----------
        data
            What serialize() returned.
        only, strict, names
            See load_model.

        Returns
        -------
        dict[str, list[str]]
            missing_state, unused_state, missing_names, unexpected_names: see load_model.

        Raises
        ------
        CheckpointError
            On all ranks, if the bytes are damaged, foreign or of another model, which is unchanged.
        ValueError
            On all ranks, on a selection that means nothing.
        """
        fit = self.checkpoints.read_image(data, {"only": only, "strict": strict, "names": names})
        self.checkpoints.adopt(fit)
        return fit.report()

    def save_state(self, file: Any) -> None:
        """Write serialize() to a binary file object of rank 0; others may pass None. Collective.

        Parameters
        ----------
        file
            A binary file object, open for writing, on rank 0.
        """
        image = self.serialize()
        world = self.checkpoints.world
        with collectively(world):
            if world.rank == 0:
                file.write(image)

    def load_state(
        self, file: Any, *, only: str | None = None, strict: bool = True, names: Any = None
    ) -> dict[str, list[str]]:
        """Read what save_state wrote from a file object of rank 0; others may pass None.

        Collective; as deserialize.

        Parameters
        ----------
        file
            A binary file object, open for reading, on rank 0.
        only, strict, names
            See load_model.
        """
        world = self.checkpoints.world
        with collectively(world):
            Selection.of(only, strict, names)
            data = file.read() if world.rank == 0 else None
        image = world.broadcast_object(data, 0)
        return self.deserialize(image, only=only, strict=strict, names=names)

    def save_model(
        self,
        path: FilePath,
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        data_position: dict | None = None,
        validation: dict | None = None,
    ) -> str:
        """Write a checkpoint of this step into folder `path` and return its own folder. Collective.

        Parameters
        ----------
        path
            Of the folder of checkpoints, which is made.
        keep
            Number of checkpoints to keep there, the new one counted; None: all are kept.
        keep_every
            Steps that are multiples of this are kept too.
        data_position
            Stored as it is, for the source of the data.
        validation
            {"loss": measured at this step, "best_step": which is not deleted, "patience"}, each a
            number or None, by which load_model(checkpoint="best") finds the best one.

        Raises
        ------
        PermissionError
            On all ranks.
        OSError
            On all ranks.
        CheckpointError
            On all ranks, earlier checkpoints stay as they were.
        """
        return self.checkpoints.save(
            path,
            keep=keep,
            keep_every=keep_every,
            data_position=data_position,
            validation=validation,
        )

    def save_model_async(
        self,
        path: FilePath,
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        data_position: dict | None = None,
        validation: dict | None = None,
    ) -> PendingCheckpoint:
        """Begin to write a checkpoint of this step; return when its values are copied. Collective.

        Training may go on. The copies are in host memory, as large as what this rank owns, and used
        again the next time. The checkpoint is there once all ranks have written and met again: in a
        train() or step() afterwards, or in wait() of what is returned, or in close(). The next save
        waits for it. Arguments as for save_model.

        Parameters
        ----------
        path, keep, keep_every, data_position, validation
            As of save_model.

        Notes
        -----
        Errors, on all ranks: as save_model, also from those later calls; nothing is left of the
        checkpoint then.
        """
        return self.checkpoints.save_async(
            path,
            keep=keep,
            keep_every=keep_every,
            data_position=data_position,
            validation=validation,
        )

    def abandon_saving(self) -> None:
        """Stop writing a checkpoint in the background; its unfinished files stay. No communication.

        For ranks that have lost others; else close() and the next save wait for it.
        """
        self.checkpoints.saver.abandon()

    def load_model(
        self,
        path: FilePath | tuple[FilePath, ...],
        *,
        only: str | None = None,
        strict: bool = True,
        names: Any = None,
        checkpoint: str | int | None = NEWEST,
    ) -> dict:
        """Go on from the newest valid checkpoint at `path`, of any mesh and policy. Collective.

        Parameters
        ----------
        path
            What save_model() was given, or a run folder; or one checkpoint, which is then taken or
            refused; or a folder of transformers, whose numbers have no checksums: a model at step
            0. Of a tuple of folders of checkpoints, the newest valid one of all is taken.
        only
            "model": take parameters and buffers alone, to predict, or to begin a new training at
            step 0 with fresh optimizer state; "averaged": the same, with the averages that sk.EMA
            kept in the place of the weights.
        strict
            False: take the names that the model and the checkpoint share; with only="model".
        names
            Patterns, such as "encoder.*" or ["*.weight", "head.*"]: take these parameters and
            buffers, and leave the others as they are; with only="model".
        checkpoint
            Of several: "newest"; "best", whose validation had the lowest loss; a step; None: the
            best where the run had a patience, else the newest.

        Returns
        -------
        dict
            What is stored beside the tensors: step, seed, data_position, ...; under "skipped" why
            newer checkpoints were passed over, which is a warning on rank 0 too; under "chosen"
            which of several was taken, in words; under
            "missing_state" and "unused_state" the names of such state; under "missing_names" what
            the model has and the checkpoint lacks, under "unexpected_names" the reverse.

        Raises
        ------
        FileNotFoundError
            On all ranks.
        PermissionError
            On all ranks.
        CheckpointError
            On all ranks, also on a tensor of another shape or dtype.
        ValueError
            On all ranks, on a selection that means nothing; the model is unchanged then.

        Notes
        -----
        Under a rule that keeps other optimizer state than the one that wrote it, state that is
        missing starts at zero, with a bias correction of its own, and state that is not kept is
        left out; a warning on rank 0 names both.
        """
        selection = {"only": only, "strict": strict, "names": names}
        found, fit, skipped, taken = self.checkpoints.read(path, selection, checkpoint)
        self.checkpoints.adopt(fit)
        self.checkpoints.take_companions(found)
        if self.checkpoints.world.rank == 0:
            warn_of_skipped(found, skipped)
        return {
            **found.manifest,
            "skipped": skipped,
            "chosen": taken.text,
            **fit.report(),
        }
