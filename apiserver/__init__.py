"""The API server: CRUD, list, watch and Bind over etcd. Stateless: run any number of them."""
