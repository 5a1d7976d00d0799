"""Grades programs: `code` has the function `grade`, as the graders of gem-core have."""
