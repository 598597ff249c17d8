"""phi_1(z) = (e^z - 1)/z and phi_2(z) = (e^z - 1 - z)/z^2: the weights of exponential integrators."""

from __future__ import annotations

import math


def phi1(z: float) -> float:
    """(e^z - 1) / z, and 1 at z = 0."""
    return math.expm1(z) / z if z != 0.0 else 1.0


def phi2(z: float) -> float:
    """(e^z - 1 - z) / z^2, and 1/2 at z = 0."""
    if abs(z) < 0.5:
        # The closed form loses all its digits to cancellation here; sixteen terms of z^k/(k+2)! are exact.
        return sum(z**k / math.factorial(k + 2) for k in range(16))
    return (math.expm1(z) - z) / z**2
