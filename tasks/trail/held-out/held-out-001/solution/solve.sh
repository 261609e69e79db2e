#!/bin/sh
echo ember >> answer.txt
echo basil >> answer.txt
echo hazel >> answer.txt
echo delta >> answer.txt
