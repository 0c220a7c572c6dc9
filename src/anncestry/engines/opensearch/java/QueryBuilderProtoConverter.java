package org.opensearch.transport.grpc.spi;

/** Named by k-NN's converter for gRPC, which no package brings and nothing here uses. */
public interface QueryBuilderProtoConverter {}
