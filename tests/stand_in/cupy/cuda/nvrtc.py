"""The compiler of kernels; what it would compile, the emulator does."""


def getVersion():
    return 12, 9
