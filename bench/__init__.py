"""Benchmarks. They print figures as ratios or CPU per pod, medians of several runs; they never judge."""
