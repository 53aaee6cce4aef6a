"""The axis that cuts the sample: sequences, spectra and graphs over a group of ranks."""
