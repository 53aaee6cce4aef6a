"""Samples that several ranks share: each holds some rows of a grid, or some tokens of a text.

rows           halo exchange and halo addition
axis           who holds which rows of a layer's input; what is read and what is refused
interior       convolutions of own rows, while those of others travel
windows        convolutions, pooling and interpolation
moments        norms whose moments are those of whole samples
others         dropouts, and what joins the parts of a sample
spans          which elements of a dim each rank holds, where parts are not even too
attention      queries of own tokens to keys of all ranks: keys go round
transposition  cut along one dim to cut along another
ways           attention by heads, or by a ring of even or of paired spans
spectra        Fourier layers by sums of modes
recurrent      recurrent layers, in turn
sequences      the layers of tokens and spectra that take the place of whole ones
graphs         message passing with a halo of nodes
plan           the table of layers that work cut, and its use on an ordinary model; read it first
slab_group     slabs of a rank as ranks of their own, which take turns
slabs          a block of a model, run for each slab
samples        parts of batches, losses that are counted once, predictions joined
"""
