"""The edge to the API server: one client, its errors, the Lease that says who leads."""
