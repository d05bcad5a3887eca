"""Stories of equal requests of one session, on a loop whose time is made up: one gave up, or both are there."""

import asyncio

import pytest

from proxy.core.errors import Refusal
from tests.waiting_story import Story, settle

pytestmark = pytest.mark.looptime


class Patient:
    """A client that comes back whenever it is told to, until it is served.

    Attributes:
        refusals: when it was refused, in seconds.
    """

    def __init__(self, story, *, twin):
        self.refusals: list[float] = []
        self.task = asyncio.get_running_loop().create_task(self._ask(story, twin))

    async def _ask(self, story, twin):
        while True:
            try:
                return await story.admit("one", 8, twin=twin)
            except Refusal as refusal:
                self.refusals.append(story.clock())
                await asyncio.sleep(refusal.retry_after_s or 0)


@pytest.mark.parametrize("clients", [2, 3, 5])
async def test_clients_that_are_both_there_do_not_push_each_other_out_for_ever(clients):
    """Best of n under one session id: each is sent away once at most, and all are served."""
    story = Story()
    running = await story.admit("running", 90)
    patients = []
    for _ in range(clients):
        patients.append(Patient(story, twin=7))
        await asyncio.sleep(0.3)
    await asyncio.sleep(100)

    assert [len(patient.refusals) for patient in patients] == [1] + [0] * (clients - 1)
    assert len(story.gate.queue) == clients
    story.end(running)
    for patient in patients:
        story.end(await patient.task)
    assert story.is_empty()
    story.room.close()


async def test_two_pairs_at_once_do_not_either():
    """Of the same session: what is known of one pair is not forgotten over the other one."""
    story = Story()
    running = await story.admit("running", 90)
    patients = []
    for twin in (7, 8, 7, 8):
        patients.append(Patient(story, twin=twin))
        await asyncio.sleep(0.3)
    await asyncio.sleep(100)

    assert sum(len(patient.refusals) for patient in patients) == 2
    story.end(running)
    for patient in patients:
        story.end(await patient.task)
    story.room.close()


async def test_it_stays_so_over_refusals():
    """The limit of the hold ends both waits; when they come back nobody is sent away before it again."""
    story = Story(max_hold_s=20.0)
    running = await story.admit("running", 90)
    patients = [Patient(story, twin=7), Patient(story, twin=7)]
    await asyncio.sleep(200)

    assert all(len(patient.refusals) <= 11 for patient in patients)
    assert max(waiting.stamp for waiting in story.gate.queue) == pytest.approx(0.0)
    story.end(running)
    for patient in patients:
        story.end(await patient.task)
    story.room.close()


async def test_a_copy_whose_client_has_gone_unseen_leaves_at_its_limit():
    """The first resend took its place; a later one waits beside what nobody listens to any more, not for ever."""
    story = Story(max_hold_s=50.0)
    await story.admit("running", 90)
    tasks = []
    for _ in range(3):
        tasks.append(story.waits("one", 30, twin=7))
        await asyncio.sleep(15)
    assert len(story.gate.queue) == 2

    await asyncio.sleep(25)

    assert len(story.gate.queue) == 1
    await asyncio.gather(*tasks, return_exceptions=True)
    await settle()
    assert len(story.gate.queue) == 0
    story.room.close()
