"""What belongs to a device besides its number."""

from .cublas import get_cublas_handle

__all__ = ["get_cublas_handle"]
