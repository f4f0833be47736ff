"""The log on Apache Kafka: the same topics, producers, groups and queues, kept by brokers."""
