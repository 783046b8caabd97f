"""Kernel fixtures: one shared by the tests of a file, and new ones."""

import driver
import pytest


class _Shared:
    """A kernel that is restarted after a test has ended it."""

    def __init__(self):
        self.kernel = None

    def get(self):
        if self.kernel is None or self.kernel.process.poll() is not None:
            self.kernel = driver.Kernel()
        return self.kernel

    def stop(self):
        if self.kernel is not None:
            self.kernel.kill()
            self.kernel = None


@pytest.fixture(scope="module")
def _shared():
    shared = _Shared()
    yield shared
    shared.stop()


@pytest.fixture
def kernel(_shared, request):
    kernel = _shared.get()
    failed = request.session.testsfailed
    yield kernel
    if request.session.testsfailed > failed:
        _shared.stop()


@pytest.fixture
def fresh():
    made = []

    def make(**more):
        made.append(driver.Kernel(**more))
        return made[-1]

    yield make
    for kernel in made:
        kernel.kill()
