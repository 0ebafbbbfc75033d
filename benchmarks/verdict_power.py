"""Compute how many runs a verdict needs: the power of n runs of ours against m of the original's program.

    python benchmarks/verdict_power.py --tolerance 0.05 --standard-deviation 0.0245 --reference-runs 6

Both programs are taken to have the same mean and the same standard deviation from seed to seed. The power is the probability
of the verdict `consistent`: that the 95 % interval of the difference, whose spread is pooled over n + m - 2 degrees of freedom,
lies inside the tolerance. Printed is the power for each n up to the first with 80 %. Choose n and m before the runs are made.
"""

import argparse
import math

from relm.reporting.equivalence import CONFIDENCE, POWER


def power(standard_deviation: float, runs: int, reference_runs: int, tolerance: float) -> float:
    """Return the probability of `consistent` if the true difference is 0, integrated over the estimate of the variance."""
    from scipy.integrate import quad
    from scipy.stats import chi2, norm, t

    freedom = runs + reference_runs - 2
    error = standard_deviation * math.sqrt(1 / runs + 1 / reference_runs)
    half_width = float(t.ppf(CONFIDENCE, freedom)) * error

    def density(squares: float) -> float:
        room = tolerance - half_width * math.sqrt(squares / freedom)
        return float(chi2.pdf(squares, freedom) * (2 * norm.cdf(room / error) - 1))

    return float(quad(density, 0, freedom * (tolerance / half_width) ** 2)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tolerance", type=float, required=True)
    parser.add_argument("--standard-deviation", type=float, required=True, help="of single runs")
    parser.add_argument("--reference-runs", type=int, required=True, metavar="M")
    given = parser.parse_args()
    for runs in range(2, 1000):
        found = power(given.standard_deviation, runs, given.reference_runs, given.tolerance)
        print(f"n = {runs}, m = {given.reference_runs}: power {found:.3f}")
        if found >= POWER:
            return
    raise SystemExit("no n below 1,000 reaches 80 %; more runs of the original's program are needed")


if __name__ == "__main__":
    main()
