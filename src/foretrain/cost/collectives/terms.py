"""Terms that bend the straight line alpha + m/B.

Gropp, Olson & Samfass 2016 (max-rate), saturation B·m/(m + half), incast.
"""

from __future__ import annotations


def ramped(volume: float, size: float, half_bytes: float) -> float:
    """Bytes to charge so that a message of `half_bytes` runs at half the bandwidth: m/B(m) = (m + half)/B."""
    return volume * (1.0 + half_bytes / size) if size > 0 else volume


def max_rate_seconds(
    senders: int, size: float, latency: float, port_rate: float, sender_rate: float
) -> float:
    """`senders` share one port, none of them faster than `sender_rate`: alpha + k·m/min(R_N, k·R_C)."""
    return latency + senders * size / min(port_rate, senders * sender_rate)


def incast_factor(senders: float, per_sender: float, most: float) -> float:
    """How much longer k simultaneous senders into one port take than their bytes need: 1 + c(k)."""
    return 1.0 + min(most, per_sender * max(0.0, senders - 1))
