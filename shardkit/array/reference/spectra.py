"""Fourier transforms of real rows, of spectra to real rows, and of columns of complex numbers."""

import math

import numpy

from ..registry import kernel


def roots(turns, size, sign):
    """Return exp(sign 2 pi i turns / size), for whole numbers of turns."""
    return numpy.exp(sign * 2j * math.pi / size * (turns % size))


@kernel(kinds="f", has_cuda_twin=False)
def rows_to_spectra(x, edge, inner, out=None):
    """Return the spectra of rows x [N, n], n even, as pairs [N, n/2 + 1, 2].

    edge, inner   by what the frequencies 0 and n/2, and those between, are multiplied
    """
    scales = _scales(x.shape[1], edge, inner)
    return _as_pairs(numpy.fft.rfft(x) * scales, x.dtype, out)


@kernel(kinds="f", has_cuda_twin=False)
def spectra_to_rows(y, size, edge, inner, out=None):
    """Return the sum of waves [N, size] of spectra, pairs y [N, size/2 + 1, 2]; size is even.

    Each frequency between counts for its negative too. The imaginary parts of 0 and size/2 do not
    count.
    edge, inner   by what the frequencies 0 and size/2, and those between, are multiplied
    """
    spectra = _as_complex(y) * _scales(size, edge, inner)
    rows = numpy.fft.irfft(spectra, size, norm="forward").astype(y.dtype)
    if out is None:
        return rows
    out[...] = rows
    return out


@kernel(kinds="f", has_cuda_twin=False)
def transform_columns(y, sign, out=None):
    """Return sums over j of y[:, j] exp(sign 2 pi i j k / n) for pairs y [outer, n, inner, 2]."""
    along = numpy.fft.ifft if sign > 0 else numpy.fft.fft
    norm = "forward" if sign > 0 else "backward"
    return _as_pairs(along(_as_complex(y), axis=1, norm=norm), y.dtype, out)


def _scales(size, edge, inner):
    scales = numpy.full(size // 2 + 1, float(inner))
    scales[[0, -1]] = edge
    return scales


def _as_complex(y):
    return y[..., 0] + 1j * y[..., 1]


def _as_pairs(spectra, dtype, out):
    out = numpy.empty((*spectra.shape, 2), dtype) if out is None else out
    out[..., 0] = spectra.real
    out[..., 1] = spectra.imag
    return out
