"""KubeSchedulerConfiguration files: read strictly, merged with the defaults as Kubernetes does, made into profiles.

`read` turns text into a configuration or into everything that is wrong with it, each with line and path; `merge` has the
rules by which a profile's plugin sets change the default ones; `arguments` makes a plugin from its arguments; `points` is
the order of extension points. Nothing here runs pods.
"""
