"""Its messages; method paths stay etcd's own. Generated; `make protos` renews them."""
