"""What simulated machines do: pod phases, device admission, hardware shapes. Pure; `now` and seeds come in."""
