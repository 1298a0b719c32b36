"""Memory that ranks hold all the time: in every peak and curve, and out of what orders may use."""

from __future__ import annotations

import numpy as np
import pytest

import debubble as db

STATIC = [3.0, 1.0, 2.0, 0.0]
PLAIN = db.Costs(F=1, I=1.5, W=0.5, p2p=0.1, host_bandwidth=4)
HELD = db.Costs(F=1, I=1.5, W=0.5, p2p=0.1, host_bandwidth=4, static=STATIC)


@pytest.mark.parametrize("offload", [None, "full"])
@pytest.mark.parametrize("name", ["1f1b", "zb-v"])
def test_peaks_and_curves_are_higher_by_it(name, offload):
    schedule = db.make(name, ranks=4, microbatches=8, offload=offload, costs=PLAIN)
    plain, held = db.simulate(schedule, PLAIN), db.simulate(schedule, HELD)
    assert np.allclose(held.peak_activation, plain.peak_activation + STATIC)
    for rank, static in enumerate(STATIC):
        times, levels = held.memory_curve(rank)
        assert np.array_equal(times, plain.memory_curve(rank)[0])
        assert np.allclose(levels, plain.memory_curve(rank)[1] + static)
        assert np.isclose(levels.max(), held.peak_activation[rank])


@pytest.mark.parametrize("name", ["zb-v", "v-half", "zb-auto"])
def test_orders_are_made_for_what_it_leaves(name):
    sizes = {"ranks": 4, "microbatches": 12}
    free = np.array([4.0, 3.5, 4.0, 3.0])
    plain = db.make(name, costs=PLAIN, memory=free.tolist(), **sizes)
    held = db.make(name, costs=HELD, memory=(free + STATIC).tolist(), **sizes)
    assert np.array_equal(plain.actions, held.actions)
    assert db.check(held, costs=HELD, memory=(free + STATIC).tolist()).ok


def test_optimize_fits_beside_it():
    sizes = {"ranks": 4, "microbatches": 4, "chunks": 1, "cache": False, "published": False,
             "workers": 1}  # fmt: skip
    plain = db.optimize(costs=PLAIN, memory=3, **sizes)
    limits = [3 + static for static in STATIC]
    held = db.optimize(costs=HELD, memory=limits, **sizes)
    assert (held.makespan, held.lower_bound) == (plain.makespan, plain.lower_bound)
    assert np.allclose(held.timeline.peak_activation, plain.timeline.peak_activation + STATIC)
    assert (held.timeline.peak_activation <= np.array(limits) + 1e-9).all()


def test_limits_are_compared_with_the_whole():
    assert [row.fits for row in db.compare(["1f1b"], ranks=4, microbatches=8, memory=7,
                                           costs=HELD).rows] == [True]  # fmt: skip
    schedule = db.make("1f1b", ranks=4, microbatches=8)
    (problem,) = db.check(schedule, costs=HELD, memory=6.5).problems
    assert "rank 0 holds up to 7 activation units" in problem.message
    assert "action 3: 0F3" in problem.message


def test_no_room_beside_it():
    asked = {"ranks": 4, "microbatches": 8, "costs": HELD, "memory": 2.5}
    for call in (lambda: db.make("zb-v", **asked), lambda: db.optimize(**asked)):
        with pytest.raises(
            db.ParameterError, match=r"rank 0 holds 3 all the time .* limit is 2\.5"
        ):
            call()


def test_forms_of_activations_are_left_out():
    from debubble.schedules.forms import closed_forms

    schedule = db.make("1f1b", ranks=4, microbatches=8)
    held = [form.form.quantity for form in closed_forms(schedule, HELD)]
    plain = [form.form.quantity for form in closed_forms(schedule, PLAIN)]
    assert "peak_activation" in plain
    assert held == [quantity for quantity in plain if quantity != "peak_activation"]
