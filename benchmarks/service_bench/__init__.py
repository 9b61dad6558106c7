"""The service measured beside a bare grpc.aio echo of the same sizes, in one run on one machine."""
