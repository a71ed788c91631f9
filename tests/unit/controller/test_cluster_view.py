"""The image that a broker's parts work with: order, waiting, and images that come too late."""

from __future__ import annotations

import asyncio

from tidelog.controller import ClusterImage, ClusterView


def image(revision: int) -> ClusterImage:
    return ClusterImage(revision=revision)


async def test_subscribers_see_every_image_in_order() -> None:
    view = ClusterView()
    seen: list[tuple[int, int]] = []
    end = view.subscribe(lambda old, new: seen.append((old.revision, new.revision)))
    for revision in (3, 5, 5):
        view.publish(image(revision))
    end()
    view.publish(image(9))
    assert seen == [(0, 3), (3, 5), (5, 5)]
    assert view.image.revision == 9


async def test_an_old_image_is_passed_over() -> None:
    view = ClusterView(image(5))
    seen: list[ClusterImage] = []
    view.subscribe(lambda old, new: seen.append(new))
    view.publish(image(4))
    assert view.image.revision == 5
    assert not seen


async def test_waiting_ends_with_the_image_that_is_waited_for_after_subscribers_saw_it() -> None:
    view = ClusterView()
    seen: list[int] = []
    view.subscribe(lambda old, new: seen.append(new.revision))
    waiting = asyncio.create_task(view.wait_for_revision(5, 60))
    for revision in (4, 6):
        await asyncio.sleep(0)
        assert not waiting.done()
        view.publish(image(revision))
    assert await waiting
    assert seen == [4, 6]
    assert await view.wait_for_revision(6)


async def test_waiting_ends_in_time() -> None:
    view = ClusterView()
    assert not await view.wait_for_revision(1, 0.001)
    assert not view._image._waiting
