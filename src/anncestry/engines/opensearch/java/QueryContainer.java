package org.opensearch.protobufs;

/** As QueryBuilderProtoConverter of the other package. */
public class QueryContainer {
    public enum QueryContainerCase {}
}
