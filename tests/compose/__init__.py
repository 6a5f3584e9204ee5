"""The compose project as a whole: real containers, real kills. `make test-compose` runs these; `make test` skips them."""
