"""Delivery: the rows of one iterator go to a target in calls, each row settled or kept.

What ``pyspark_flowctl.flow_sink`` runs in each partition; nothing here knows Spark.
"""
