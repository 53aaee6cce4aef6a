"""Whole parameter vectors of a sharded model, and models made from another.

canonical vector   1-D: all parameters, in the order of the wrapped model's named_parameters()
clone()            another face on the same parameters, optimizer state and mesh
deep_copy()        parameters and optimizer state of its own, on the same mesh
"""

from contextlib import AbstractContextManager
from typing import Any, Self

from ...annotations import Array
from ...comm.mesh import Mesh
from .history import History


class Copied:
    """The contract of models that can be copied, and read and set as one vector.

    Attributes
    ----------
    engine, mesh, checkpoints, history
        Of the sharded model that derives from this class, which says how its parts are made.
    """

    engine: Any  # an Engine
    mesh: Mesh
    checkpoints: Any  # Checkpoints
    history: History

    def compile(self) -> None:
        """Compile a step: see ShardedModel."""
        raise NotImplementedError

    def _check_open(self) -> None:
        """Errors: CommunicationError if the model is closed."""
        raise NotImplementedError

    def _assemble(self, wrapped_model, config, mesh, *, is_copy=False) -> None:
        """Make the parts of this model around a module. Collective over the mesh."""
        raise NotImplementedError

    def gather_full_parameters(self) -> Array:
        """Return all parameters, 1-D, in the wrapped model's canonical order. Collective."""
        self._check_open()
        return self.engine.weights.gather()

    def get_parameters(self) -> Array:
        """Return what gather_full_parameters() returns. Collective."""
        return self.gather_full_parameters()

    def set_parameters(self, vector: Array) -> None:
        """Replace all parameters by this canonical vector. Collective.

        Parameters
        ----------
        vector
            1-D, what gather_full_parameters() returns; the same on all ranks.

        Raises
        ------
        ValueError
            On all ranks, on another length.
        ShardingError
            On all ranks, if ranks pass different ones.
        """
        self._check_open()
        self.engine.state.averages.check_not_in_use("set parameters")
        self.engine.weights.set(vector)

    def with_averaged_parameters(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the averages that sk.EMA keeps as its weights.

            with model.with_averaged_parameters():
                loss = model.evaluate(x, y)

        Collective, as its end. predict(), evaluate(), generate() and get_parameters() are for the
        block; training, loading, saving and setting parameters are refused in it. Before the first
        step the averages are the weights.

        Raises
        ------
        ShardingError
            On all ranks, if the rule keeps no averages.
        """
        self._check_open()
        return self.engine.state.averaged()

    def with_parameters(self, vector: Array) -> Self:
        """Return a model of the same type on the same mesh with these parameters. Collective.

        Its optimizer state is fresh. Close it too: the mesh is closed with its last model.

        Parameters
        ----------
        vector
            1-D, what gather_full_parameters() returns; the same on all ranks.
        """
        other = self._with_own_parameters()
        other.set_parameters(vector)
        self.mesh.share()
        return other

    def clone(self) -> Self:
        """Return a model that shares parameters, optimizer state and mesh with this one.

        Of the same type; no communication. Close it too: the mesh is closed with its last model.
        """
        self._check_open()
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.history, other.checkpoints = self.checkpoints.for_clone()
        self.mesh.share()
        return other

    __copy__ = clone

    def deep_copy(self) -> Self:
        """Return a model on the same mesh with parameters and optimizer state of its own.

        Of the same type; collective. Close it too: the mesh is closed with its last model.
        """
        other = self._with_own_parameters()
        other.engine.state.copy_from(self.engine.state)
        other.history.last_loss = self.history.last_loss
        other.history.train_seconds = self.history.train_seconds
        other.history.evaluation = self.history.evaluation
        self.mesh.share()
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.deep_copy()

    def _with_own_parameters(self) -> Self:
        self._check_open()
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        module = self.engine.weights.fresh_module()
        other._assemble(module, self.engine.config, self.mesh, is_copy=True)
        other.checkpoints.companions = self.checkpoints.companions
        other.checkpoints.attributes.succeed(self.checkpoints.attributes)
        if self.engine.compilation.is_on:
            other.compile()
        return other
