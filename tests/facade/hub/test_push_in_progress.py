"""Uploads that are on their way can be given up, and waited for, which is said when it takes long."""

from concurrent.futures import Future

from lightrainer.facade.hub.pushing import PushInProgress


def test_the_uploads_that_wait_can_be_given_up():
    waiting, done = Future(), Future()
    done.set_result(1)
    running = Future()
    running.set_running_or_notify_cancel()
    pushes = PushInProgress([waiting, done, running])
    assert not pushes.is_done()
    pushes.cancel()
    assert pushes.jobs == [running]
    running.set_result(1)
    assert pushes.is_done()
    pushes.wait_until_done()
