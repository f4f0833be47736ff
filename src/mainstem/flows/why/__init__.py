"""Why a row of a view is as it is: the records it was made of, found without Spark by the lineage of its flow."""
