"""Delivery: the rows of one iterator go to a target in calls, each row settled or kept.

``pyspark_flowctl.flow_sink`` runs this in each partition; no code here knows Spark.
"""
