package org.opensearch.transport.grpc.spi;

/** As QueryBuilderProtoConverter. */
public interface QueryBuilderProtoConverterRegistry {}
