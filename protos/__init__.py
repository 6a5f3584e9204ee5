"""The contracts: protobuf definitions, and the modules generated from them beside each."""
