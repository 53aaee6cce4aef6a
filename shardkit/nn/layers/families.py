"""Families of layers: a class each for signals, images and volumes."""


def of_dims(num_dims: int, operation):
    """Make a class the one of its family for grids of so many dimensions, by this operation."""

    def enter(cls):
        cls.__doc__ = cls.__base__.__doc__
        cls.num_dims = num_dims
        cls.operation = staticmethod(operation)
        return cls

    return enter
