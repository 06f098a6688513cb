"""This machine: processes, files, Java, jars, packages of the distribution."""
