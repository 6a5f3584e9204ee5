"""What we speak of etcd's wire protocol."""
