"""Operations on a stopped stream: reset, rebuild, recompute, replay."""
