"""How pytest-xdist shares the tests of this project among its workers."""

from xdist.scheduler import LoadGroupScheduling

SINGLE_TESTS = ("tests/e2e/", "tests/docs/")  # which take seconds each, and leave nothing behind


class SharedFiles(LoadGroupScheduling):
    """Gives a worker whole files, or all tests of an xdist_group, and not test by test.

    What one test of a file has compiled, trained or read is there for the others. And pytest-xdist
    counts all that it has given out after each test: with 22,000 single ones that takes 27 CPU
    seconds.
    """

    def _split_scope(self, nodeid):
        """Return the name of the group, the file or the test that nodeid is shared with."""
        group = super()._split_scope(nodeid)
        is_alone = group != nodeid or nodeid.startswith(SINGLE_TESTS)
        return group if is_alone else nodeid.split("::")[0]
