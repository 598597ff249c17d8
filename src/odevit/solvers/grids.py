"""t_n = t0 + (t1 - t0) g(n / N): grids that are not uniform."""

from __future__ import annotations

import math

from odevit.core.solver_config import GRIDS, RATIO


@GRIDS.register("geometric")
def geometric(u: float, ratio: float = RATIO) -> float:
    """g(u) = (r^u - 1) / (r - 1): every step is longer than the one before by the same factor, r^{1/N}.

    The noise levels of a variance-exploding diffusion, sigma_n = sigma_min (sigma_max / sigma_min)^{n/N} (Song et al.
    2021), as times. With r > 1 the steps are short where the trajectory begins, with r < 1 where it ends.
    """
    return u if ratio == 1.0 else math.expm1(u * math.log(ratio)) / math.expm1(math.log(ratio))
