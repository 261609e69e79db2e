#!/bin/sh
echo noble >> answer.txt
echo tulip >> answer.txt
